"""`manage.py quickstart`: servers, database, web, scheduler, workers and the demo, started by one command.

session      the order of things, and their end (this process; it owns everything else)
prepare      migrations, staff user, fixtures (a process that ends)
application  starts and stops the process manager
processes    web, scheduler, workers, Celery under the manager (a process that lives as long as the session)
running      where another terminal finds the servers
"""
