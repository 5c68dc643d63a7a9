# Extension type codes of MessagePack that this project reads and writes.

cdef enum:
    # A JavaScript `undefined`: absent in a map, None in a list.
    EXT_UNDEFINED = 0
    # A typed buffer with dtype, shape and byte order; layout in packing.pyx.
    EXT_TYPED = 0x51
    # The timestamp of the MessagePack specification, 4, 8 or 12 bytes long.
    EXT_TIMESTAMP = -1
