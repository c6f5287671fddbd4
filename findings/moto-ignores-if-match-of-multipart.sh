#!/bin/sh
# moto 5.2.5 checks If-Match on PutObject, and ignores it on CompleteMultipartUpload and CopyObject.
#
# S3 documents If-Match and If-None-Match for PutObject, CompleteMultipartUpload and CopyObject: a
# request whose ETag is not the object's answers 412 and changes nothing. moto answers 412 to the
# first; it completes a multipart upload under a wrong If-Match, and overwrites the object. With
# If-None-Match it refuses the completion, so one may take the pair for covered. A program that
# replaces large objects by compare-and-swap passes its tests on moto while its condition is wrong
# or left out.
#
# Expected output:
#   moto 5.2.5, botocore 1.43.117
#   PutObject If-None-Match * : 412
#   CompleteMultipartUpload If-None-Match * : 412
#   PutObject If-Match "other" : 412
#   CompleteMultipartUpload If-Match "other" : done
#   CopyObject If-Match "other" : done
#
# Needs Python 3.11 or later; installs into a temporary folder. No request leaves the process.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check 'moto[s3]==5.2.5' boto3==1.43.117 botocore==1.43.117

cat > probe.py <<'PY'
import boto3
import botocore
import moto
from botocore.exceptions import ClientError

print(f"moto {moto.__version__}, botocore {botocore.__version__}")
with moto.mock_aws():
    s3 = boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none"
    )
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="key", Body=b"old")

    def put(**condition):
        s3.put_object(Bucket="bucket", Key="key", Body=b"new", **condition)

    def complete(**condition):
        place = {"Bucket": "bucket", "Key": "key"}
        place["UploadId"] = s3.create_multipart_upload(**place)["UploadId"]
        part = s3.upload_part(PartNumber=1, Body=b"newer", **place)
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(MultipartUpload=parts, **place, **condition)

    def copy(**condition):
        s3.copy_object(
            Bucket="bucket", Key="key", CopySource="bucket/key", MetadataDirective="REPLACE",
            **condition,
        )

    none, other = {"IfNoneMatch": "*"}, {"IfMatch": '"other"'}
    for name, call, condition in (
        ("PutObject If-None-Match *", put, none),
        ("CompleteMultipartUpload If-None-Match *", complete, none),
        ('PutObject If-Match "other"', put, other),
        ('CompleteMultipartUpload If-Match "other"', complete, other),
        ('CopyObject If-Match "other"', copy, other),
    ):
        try:
            call(**condition)
            print(name, ": done")
        except ClientError as error:
            print(name, ":", error.response["ResponseMetadata"]["HTTPStatusCode"])
PY
venv/bin/python probe.py > seen
cat > wanted <<'WANTED'
moto 5.2.5, botocore 1.43.117
PutObject If-None-Match * : 412
CompleteMultipartUpload If-None-Match * : 412
PutObject If-Match "other" : 412
CompleteMultipartUpload If-Match "other" : done
CopyObject If-Match "other" : done
WANTED
cat seen
diff wanted seen
