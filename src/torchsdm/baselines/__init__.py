"""The estimators that the paper compares with, and those a user would pick today, behind one interface."""
