"""moto's S3 on a free port, which it prints once it listens. Requests are answered one at a time: moto
checks before it acts, so that of creators racing for one object two could win, and now and then did.
"""

from threading import Lock

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

moto = DomainDispatcherApplication(create_backend_app)
lock = Lock()


def one_at_a_time(environ, start_response):
    with lock:
        return list(moto(environ, start_response))


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
print(server.port, flush=True)
server.serve_forever()
