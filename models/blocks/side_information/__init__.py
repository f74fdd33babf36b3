"""What is known beside the data: links, groups and partial labels, and how reliable links are."""
