"""What follows from the log: tables in mapped files, and what each record does to them."""
