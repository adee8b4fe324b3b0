class ByteTokenizer: pass
