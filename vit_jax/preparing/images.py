"""What happens to an image on its way into a record: it is decoded to see that it can be, and made smaller on wish.

An image is kept byte for byte unless its short side is longer than wanted. Then it is decoded to RGB, averaged down
to size (OpenCV's area method, rounded) and stored as JPEG with colours at half resolution (4:2:0), as photographs
usually are. Raw pixels stay raw pixels. The new file has no EXIF: its orientation is applied or dropped now.
"""

from dataclasses import asdict, dataclass

import cv2
import numpy as np

from vit_jax.data.decode import BadImage, decode_image


@dataclass(frozen=True)
class Images:
    """How images are treated.

    Attributes:
      short_side: pixels; larger images are resized to it. 0: none are.
      jpeg_quality: 1 to 100, of resized images.
      exif: turn resized images as their EXIF orientation says.
      check: decode images that stay as they are too.
    """

    short_side: int = 0
    jpeg_quality: int = 95
    exif: bool = False
    check: bool = True

    def facts(self) -> dict[str, object]:
        """What the resulting bytes hang on."""
        if not self.short_side:
            return {"resize_short_side": 0, "check": self.check}
        options = asdict(self)
        options["resize_short_side"] = options.pop("short_side")
        return options | {"opencv": cv2.__version__}

    def __call__(self, image: bytes | np.ndarray, name: str) -> bytes | np.ndarray:
        """The image to be stored: encoded bytes, or uint8 [H, W, C].

        Raises:
          BadImage: it can't be decoded.
        """
        if isinstance(image, np.ndarray):
            return self._smaller(image) if self.short_side else image
        if not self.short_side:
            if self.check:
                decode_image(image, name=name)
            return image
        pixels = decode_image(image, exif=self.exif, name=name)
        if min(pixels.shape[:2]) <= self.short_side:
            return image
        done, encoded = cv2.imencode(
            ".jpg", self._smaller(pixels)[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, self.jpeg_quality]
        )
        if not done:
            raise BadImage(name, f"{list(pixels.shape)} pixels can't be written as JPEG")
        return encoded.tobytes()

    def _smaller(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, C] with a short side of `short_side`, if it was longer."""
        height, width = image.shape[:2]
        short = min(height, width)
        if short <= self.short_side:
            return image
        size = [max(1, round(side * self.short_side / short)) for side in (width, height)]
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        return small.reshape(size[1], size[0], -1)
