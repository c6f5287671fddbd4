"""Write records of partitions to Parquet files."""
