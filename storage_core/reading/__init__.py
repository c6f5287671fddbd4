"""Read records of log directories: plan file ranges, yield Arrow batches.

A request becomes ranges of files, and a range becomes Arrow batches.
"""
