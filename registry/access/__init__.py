"""Access control: users, their permissions on subjects, and authorization of requests. Independent of HTTP."""
