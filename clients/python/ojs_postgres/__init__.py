"""Push and work jobs of ojs, the Open Job Spec queue inside PostgreSQL, over psycopg 3."""
from .errors import JobAborted, JobError, OjsError
from .job import Job
from .jobs import (cancel, cancel_async, info, info_async, push, push_async, push_many, push_many_async, wait_result,
                   wait_result_async)
from .worker import JsonFormatter, Worker

__all__ = ["Job", "JobAborted", "JobError", "JsonFormatter", "OjsError", "Worker", "cancel", "cancel_async", "info",
           "info_async", "push", "push_async", "push_many", "push_many_async", "wait_result", "wait_result_async"]
