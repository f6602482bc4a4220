"""How families of models write answers: what marks their thinking and their calls of tools."""
