"""A diagnostic takes a question and a subject and yields typed rows; it never prints."""
