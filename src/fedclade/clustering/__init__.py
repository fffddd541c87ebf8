"""Pure functions on arrays: from what clients sent to which of them belong together.

`similarity` compares clients, `hierarchy` grows and cuts trees, `large` does so for any number of clients, `automatic`
decides how many clusters there are,
`bipartition` splits one cluster in two, `centers` clusters around centres, `preclusters` groups by label statistics,
`selection` picks who trains, `scores` compares labels with the hidden groups, `labels` keeps them in one form.
"""
