"""What decides on the next token before any tensor is touched: rules, penalties, masks and grammars."""
