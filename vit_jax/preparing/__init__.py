"""What `prepare` is made of: images and labels of any layout in, ArrayRecord shards and a manifest out.

`inputs` opens a source, `plan` decides what goes where, `destination` remembers what is done, `writing` does it;
`verify` and `duplicates` look at the result.
"""
