"""HTTP: `front` answers what is kept and hands the rest to the Flask application that `app` makes."""
