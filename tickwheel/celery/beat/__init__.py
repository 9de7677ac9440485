"""Celery Beat on schedules of the broker: ``celery beat -S tickwheel``.

Beat writes what ``beat_schedule`` says into schedules of the broker, which then sends the tasks: any number of beats
may run, or none.
"""
