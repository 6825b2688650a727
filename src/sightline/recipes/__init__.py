"""Recipes: one TOML file for each system, and the schema that reads them."""
