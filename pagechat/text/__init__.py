"""What is known of text: how the answers of a model are taken apart into what it thought, said and called.

parts.py     the parts of an answer                  json_value.py  where a JSON value ends
reader.py    text as it comes, to parts              formats/       the marks that models write, one file a family
"""
