"""The schema: tables, the words in their columns, migrations, views, triggers. No transactions.

Imports nothing of `cairn`.
"""
