"""What `tickwheel push` calls: endpoints of topics, and HTTP tasks."""
