"""A receiver of webhooks for the tests of the gateway: it answers as it is told to."""
import http.server
import json
import threading

got = []  # (path, headers, body), as they come
answers = {}  # by path: a function of the handler


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        got.append((self.path, dict(self.headers), body))
        answers.get(self.path, lambda handler: handler.say(200, b'thanks'))(self)

    def say(self, status, body=b'', **headers):
        self.send_response(status)
        for name, value in {'Content-Length': len(body), **headers}.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, *_):
        pass


server = Quiet(('127.0.0.1', 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
here = f'http://127.0.0.1:{server.server_port}'


def came(path):
    """The headers and the body of each delivery to a path."""
    return [(headers, json.loads(body)) for at, headers, body in list(got) if at == path]
