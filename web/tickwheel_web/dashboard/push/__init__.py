"""The pages about push endpoints: a list, one of them, and a form."""
