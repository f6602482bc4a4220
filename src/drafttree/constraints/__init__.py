"""What a text must obey along every path of its trees: generation options, processors, grammars."""
