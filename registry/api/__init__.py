"""HTTP API: `asgi_front` serves cached responses and runs the Flask application of `app` for the others."""
