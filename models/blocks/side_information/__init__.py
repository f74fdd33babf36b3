"""Side information: links, groups and partial labels, and the reliability of links."""
