"""`tickwheel work`: `loading` finds a program's handlers, `figures` shows what they do, `command` runs them."""
