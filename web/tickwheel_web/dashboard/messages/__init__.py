"""The pages about messages: lists, single ones, dead letters, and a form that sends one."""
