"""The pages about schedules: a list, one of them, a form with a preview, and a calendar."""
