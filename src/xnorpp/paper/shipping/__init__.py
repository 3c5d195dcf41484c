"""Makes the models that ship and their cards."""
