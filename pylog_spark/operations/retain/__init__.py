"""Delete segments that retention no longer keeps."""
