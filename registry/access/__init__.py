"""Who may do what: users, their rights on subjects, and the decision about a request. Knows nothing of HTTP servers."""
