"""Reading records of log directories: a request becomes ranges of files, a range Arrow batches."""
