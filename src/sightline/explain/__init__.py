"""What the model attended to for each word of a caption, as a picture or a page.

`import sightline` makes this module available.

>>> captioner.caption("dog.jpg").overlay().save("dog-explained.png")
>>> sightline.explain.explain(captioner, "dog.jpg").save("dog-explained.html")
"""

from sightline.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
