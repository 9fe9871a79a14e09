"""Events about objects, kept up to date and limited in number."""
