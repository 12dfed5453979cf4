"""Example tasks that index the words in a folder of text files. `manage.py demo` runs them and checks the outcome."""
