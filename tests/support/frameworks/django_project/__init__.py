"""A project of Django's, for tests of ``tickwheel.django``."""
