"""How a broker goes, out of its figures: what the dashboard and ``tickwheel top`` have in common."""
