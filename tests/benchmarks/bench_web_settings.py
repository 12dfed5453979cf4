"""Settings of the benchmarks that open pages: whitenoise serves the static files, as in production."""

from bench_settings import *

MIDDLEWARE = ["whitenoise.middleware.WhiteNoiseMiddleware", *MIDDLEWARE]
WHITENOISE_USE_FINDERS = True
