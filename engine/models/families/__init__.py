"""One file a family: a table of what sets it apart from Llama, in the words of its config.json."""
