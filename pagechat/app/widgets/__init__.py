"""Widgets of the main screen, one a file. Text from outside is only ever `Content`, never markup."""
