def pack(sessions):
    raise NotImplementedError
