"""How a context is saved. Built so far: cuda."""
