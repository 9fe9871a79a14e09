"""Events about objects, kept true and rarely said."""
