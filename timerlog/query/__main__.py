"""``python -m timerlog.query``: see ``timerlog.query.worker``."""

from timerlog.query.worker import main

main()
