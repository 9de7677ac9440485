"""The project of docs/how-to/django-tasks.md: ``python manage.py test`` runs its tests, with a broker of their own."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
