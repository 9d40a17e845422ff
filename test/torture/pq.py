"""pq.py: just enough of libpq, by ctypes: one blocking connection with prepared statements."""

import ctypes
import functools

_lib = ctypes.CDLL("libpq.so.5")


def _function(name, result, *arguments):
    f = getattr(_lib, name)
    f.restype = result
    f.argtypes = arguments
    return f


_ptr, _str, _int = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_connectdb = _function("PQconnectdb", _ptr, _str)
_finish = _function("PQfinish", None, _ptr)
_status = _function("PQstatus", _int, _ptr)
_error_message = _function("PQerrorMessage", _str, _ptr)
_backend_pid = _function("PQbackendPID", _int, _ptr)
_exec = _function("PQexec", _ptr, _ptr, _str)
_prepare = _function("PQprepare", _ptr, _ptr, _str, _str, _int, _ptr)
_exec_prepared = _function("PQexecPrepared", _ptr, _ptr, _str, _int, _ptr, _ptr, _ptr, _int)
_result_status = _function("PQresultStatus", _int, _ptr)
_result_field = _function("PQresultErrorField", _str, _ptr, _int)
_clear = _function("PQclear", None, _ptr)
_ntuples = _function("PQntuples", _int, _ptr)
_nfields = _function("PQnfields", _int, _ptr)
_getvalue = _function("PQgetvalue", _str, _ptr, _int, _int)
_getisnull = _function("PQgetisnull", _int, _ptr, _int, _int)
_set_notices = _function("PQsetNoticeProcessor", _ptr, _ptr, _ptr, _ptr)

_NOTICE = ctypes.CFUNCTYPE(None, _ptr, _str)
_silent = _NOTICE(lambda _arg, _message: None)


class Dead(Exception):
    """The connection is gone; what was asked last may or may not have happened."""


class SqlError(Exception):
    def __init__(self, sqlstate, message, detail):
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate, self.message, self.detail = sqlstate, message, detail


@functools.lru_cache(maxsize=None)
def _array_type(n):
    return ctypes.c_char_p * n


class Connection:
    def __init__(self, conninfo):
        self.handle = _connectdb(conninfo.encode())
        self.statements = {}
        if _status(self.handle) != 0:
            message = _error_message(self.handle).decode(errors="replace").strip()
            self.close()
            raise Dead(message)
        _set_notices(self.handle, ctypes.cast(_silent, _ptr), None)
        self.pid = _backend_pid(self.handle)

    def close(self):
        if self.handle:
            _finish(self.handle)
            self.handle = None

    def _take(self, result):
        status = _result_status(result) if result else 7
        try:
            if status == 2:
                rows, columns = range(_ntuples(result)), range(_nfields(result))
                return [[_getvalue(result, r, c).decode() if not _getisnull(result, r, c) else None
                         for c in columns] for r in rows]
            if status in (0, 1):
                return []
            state = _result_field(result, ord("C")) if result else None
            message = (_result_field(result, ord("M")) if result else None) or _error_message(self.handle)
            message = message.decode(errors="replace").strip()
            if _status(self.handle) != 0 or state is None:
                raise Dead(message)
            detail = _result_field(result, ord("D")) or b""
            raise SqlError(state.decode(), message, detail.decode(errors="replace"))
        finally:
            if result:
                _clear(result)

    def execute(self, sql):
        """One or several commands without parameters."""
        if not self.handle:
            raise Dead("closed")
        return self._take(_exec(self.handle, sql.encode()))

    def query(self, sql, *parameters):
        """One command, prepared at its first use. Parameters are str or None."""
        if not self.handle:
            raise Dead("closed")
        name = self.statements.get(sql)
        if name is None:
            name = b"s%d" % len(self.statements)
            self._take(_prepare(self.handle, name, sql.encode(), 0, None))
            self.statements[sql] = name
        n = len(parameters)
        values = _array_type(n)(*[None if p is None else p.encode() for p in parameters])
        return self._take(_exec_prepared(self.handle, name, n, values, None, None, 0))
