namespace lowbit { int test_dwconv_stub; }
