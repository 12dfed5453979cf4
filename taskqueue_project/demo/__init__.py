"""Example tasks: an index of the words in a folder of text files. `manage.py demo` runs them and says what came out."""
